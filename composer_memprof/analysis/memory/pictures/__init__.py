"""The data of pictures: memory over time, and the layout of segments."""
