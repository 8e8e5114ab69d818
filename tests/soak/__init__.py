"""The soak: half an hour of members and brokers coming, going, dying and sleeping, judged record by record."""
