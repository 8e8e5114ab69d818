"""The demo: a fleet on a real cluster, fed with a year of real flights, and a report of counts that must add up."""
