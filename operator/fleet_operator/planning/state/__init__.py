"""The operator's memory of one object: decisions that no observation shows again, one part for each concern."""
