"""Simulation of a scaled fleet: arrivals, a model of the group, and rules that choose the number of workers."""
