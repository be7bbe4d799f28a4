"""How far each method agrees with the code that its authors released."""
