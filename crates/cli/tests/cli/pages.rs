//! The pages of `--html` and the lines of `--progress json`.

use std::process::Command;

use super::{floe_on, image};
use floe_testkit::{Image, build, tool};

/// A name with a script, an external image and the end of an attribute, if it were not escaped.
const NASTY: &str = "<script>alert(1)</script><img src=x onerror='a'>\"&amp;";

/// An image with that name in its root and its label, and with damage that concerns it.
fn nasty() -> Option<Image> {
    let image = image("ext4")?;
    let folder = tool::scratch("floe-pages").unwrap();
    let file = folder.path().join("content");
    std::fs::write(&file, "x".repeat(5000)).unwrap();
    // debugfs does not accept quotes in names, so they are patched in.
    let lines = format!(
        "write {} nasty<script>alert(1)<b>\nset_inode_field nasty<script>alert(1)<b> \
         links_count 7\nset_super_value volume_name <b>&amp;\n",
        file.display()
    );
    build::debugfs_that_tells(&image, &lines).unwrap();
    Some(image)
}

/// Faults of a page: wrongly nested tags, and anything that loads or runs.
fn faults(page: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let lower = page.to_lowercase();
    for word in
        ["http:", "https:", "<script", "<img", "<link", "<iframe", "url(", "@import", "src="]
    {
        if lower.contains(word) {
            faults.push(format!("it holds {word}"));
        }
    }
    let mut open: Vec<&str> = Vec::new();
    let style_end = page.find("</style>").unwrap_or(0);
    let (head, body) = page.split_at(style_end);
    let head = &head[..head.find("<style>").map_or(0, |at| at + 7)];
    for part in head.split('<').skip(1).chain(body.split('<').skip(1)) {
        let Some((tag, text)) = part.split_once('>') else {
            faults.push(format!("a tag without an end: {part}"));
            continue;
        };
        if text.contains('>') {
            faults.push(format!("a bare > in {text}"));
        }
        let name = tag.split([' ', '/']).find(|name| !name.is_empty()).unwrap_or("");
        match tag {
            _ if tag.starts_with('!') || tag.ends_with('/') => {}
            _ if tag.starts_with('/') => {
                if open.pop() != Some(name) {
                    faults.push(format!("</{name}> closes what is not open"));
                }
            }
            _ => open.push(name),
        }
    }
    faults.extend(open.iter().map(|name| format!("<{name}> is not closed")));
    faults
}

#[test]
fn pages_are_whole_and_load_nothing() {
    let Some(image) = nasty() else { return };
    let folder = tool::scratch("floe-pages").unwrap();
    let runs: [(&str, &[&str], i32); 3] = [
        ("check", &["check"], 4),
        ("dry", &["repair", "--dry-run"], 1),
        ("repair", &["repair", "--yes"], 1),
    ];
    for (name, command, code) in runs {
        let page = folder.path().join(format!("{name}.html"));
        let page_name = page.to_str().unwrap();
        let mut all = command.to_vec();
        all.extend(["--html", page_name]);
        let ran = floe_on(&all, image.path());
        assert_eq!(ran.code, code, "{}{}", ran.out, ran.err);
        let text = std::fs::read_to_string(&page).unwrap();
        assert_eq!(faults(&text), Vec::<String>::new(), "{name}");
        assert!(text.contains("nasty&lt;script&gt;alert(1)&lt;b&gt;"), "{name}");
        assert!(text.contains("inode-link-count-wrong"), "{name}");
        browse(&text, page_name);
    }
    assert!(!faults(NASTY).is_empty(), "the judge is not blind");
    assert!(!faults("<p><b></p>").is_empty());
}

/// A browser parses the page as intended: its text is the same.
fn browse(text: &str, page: &str) {
    let Ok(output) = Command::new("chromium")
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .arg(format!("--user-data-dir={page}.browser"))
        .arg(format!("file://{page}"))
        .output()
    else {
        eprintln!("skipped: chromium cannot be started, so no browser looked at the pages");
        return;
    };
    let shown = String::from_utf8_lossy(&output.stdout);
    let count = |text: &str, what: &str| text.matches(what).count();
    for element in ["<section", "<tr", "<li", "<svg", "<path"] {
        assert_eq!(count(&shown, element), count(text, element), "{element} in {page}");
    }
}

#[test]
fn progress_goes_on_and_tells_what_is_left() {
    let Some(image) = image("ext4") else { return };
    let ran = floe_on(&["check", "--progress", "json"], image.path());
    assert_eq!(ran.code, 0, "{}", ran.err);
    let lines: Vec<serde_json::Value> =
        ran.err.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!lines.is_empty());
    let shares: Vec<f64> = lines.iter().map(|line| line["share"].as_f64().unwrap()).collect();
    assert!(shares.is_sorted() && shares.iter().all(|share| (0.0..=1.0).contains(share)));
    let quiet = floe_on(&["check"], image.path());
    assert_eq!(quiet.err, "", "standard error is no terminal here");
}
