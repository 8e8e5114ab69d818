"""Plans for Redrives: obstacles, the Job, phase and status."""
