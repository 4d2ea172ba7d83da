"""What the server answers: one router a file, mounted by `outrider.server.app`."""
