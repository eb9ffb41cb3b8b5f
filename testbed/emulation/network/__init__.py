"""The emulated network: namespaces, links, their shaping, and who watches them."""
