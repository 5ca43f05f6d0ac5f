//! Tells systemd how far the server is: sd_notify(3), for services with `Type=notify`.

use std::ffi::{OsStr, OsString};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The mount serves.
pub(super) fn ready() {
    tell(&format!("READY=1\nMAINPID={}\nSTATUS=mounted", std::process::id()));
}

/// The mount ends, and what is left is written.
pub(super) fn stopping() {
    tell("STOPPING=1\nSTATUS=writing the last changes");
}

/// Sends a message where systemd waits for one. Failures have no reader but systemd, which then stops the service after its
/// own time-out.
fn tell(text: &str) {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let _ = send(&place, text);
}

fn send(place: &OsString, text: &str) -> std::io::Result<()> {
    let address = match place.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(OsStr::new(place))?,
    };
    UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_reach_sockets_with_a_path_and_abstract_ones() {
        let folder = floe_testkit::tool::scratch("floe-notify-").unwrap();
        let path = folder.path().join("socket");
        let name = format!("floe-notify-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (address, place) in [
            (SocketAddr::from_pathname(&path).unwrap(), path.clone().into_os_string()),
            (abstract_name, format!("@{name}").into()),
        ] {
            let socket = UnixDatagram::bind_addr(&address).unwrap();
            send(&place, "READY=1").unwrap();
            let mut bytes = [0; 100];
            let len = socket.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..len], b"READY=1");
        }
        assert!(send(&"/nowhere".into(), "READY=1").is_err());
    }
}
