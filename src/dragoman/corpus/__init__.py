"""Text -> prepared corpus -> packed rows."""
