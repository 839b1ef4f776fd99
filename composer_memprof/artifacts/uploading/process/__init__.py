"""The process that uploads, so that uploads take no time of the training's interpreter."""
