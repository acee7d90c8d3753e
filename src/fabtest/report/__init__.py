"""What people and other tools read: the picture of a fabric, and the verdicts of a run as text, JSON and HTML. Pure."""
