"""What each process used: pure code, no clock, no files, no log."""
