"""What the operator remembers of one object: decisions that no observation shows again, one part for each concern."""
