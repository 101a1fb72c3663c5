"""Records to what people see."""
