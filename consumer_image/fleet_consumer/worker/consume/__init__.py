"""The consume loop and its parts: intake, handler calls, outcomes, writing, progress and commits."""
