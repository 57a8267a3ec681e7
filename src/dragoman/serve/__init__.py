"""`dragoman serve`: models behind an address, with LibreTranslate's API and a page."""
