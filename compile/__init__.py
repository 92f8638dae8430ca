"""Building bundles: lowering weightless graphs for a back-end, binding weights, writing what an app loads."""
