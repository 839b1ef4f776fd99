"""Tools that follow Python calls: memray and VizTracer, the processes that they follow too, and which tool is active."""
