# dbench: the calls of an office's file server, two clients.
dbench -t "$SECONDS_EACH" -D . 2
