"""The consume loop and its components: intake, handler calls, outcomes, writing, progress and commits."""
