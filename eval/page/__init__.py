"""An evaluation's report as one HTML page that needs nothing else: no script, no font, no request, light or dark."""

from linearkv.eval.page.sections import page

__all__ = ["page"]
