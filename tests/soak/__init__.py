"""The soak: half an hour of members and brokers that join, leave, crash and sleep, judged record by record."""
