"""The consume loop and its components: intake, handler calls, outcomes, writes, progress and commits."""
