"""`dragoman check`: what machines and links allow, measured before hours are spent."""
