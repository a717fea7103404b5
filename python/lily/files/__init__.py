"""Reading, digesting and replacing files without trusting what lies at their paths."""
