"""The page of ``edgefl sweep --page``: one HTML file that asks no network for anything.

``view.html`` is what it shows, the scripts compute and draw it from the record that stands in the page.
"""

from edgefl.drawing.sliders.slider_page import page_of

__all__ = ["page_of"]
