"""The only code that runs torch: it loads models, makes inputs, records signals and exports. It judges nothing."""
