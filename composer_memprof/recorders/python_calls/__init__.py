"""Tools that follow Python calls: memray and VizTracer, child processes that they trace, and which tool is active."""
