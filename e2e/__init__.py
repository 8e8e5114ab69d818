"""End-to-end suites and the embedded cluster that they run on."""
