"""One line of text to a webhook, in the form that Slack takes: `{"text": ...}`."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from search_spaces.inert_text import inert

#: Seconds that a webhook has to answer.
TIMEOUT_S = 5.0
#: Longest text.
_MOST = 2000
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An address that points elsewhere is a failure: the text is for this one."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post_text(url: str, text: str) -> str:
    """Send a text; returns why it failed in one line, without the address, or empty text.

    Characters that Slack or a terminal would interpret are escaped, and the end of a long text is
    left out.
    """
    escaped = "".join(_ENTITIES.get(character, character) for character in inert(text)[:_MOST])
    request = urllib.request.Request(
        url, json.dumps({"text": escaped}).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S):
            return ""
    except urllib.error.HTTPError as error:
        return f"it answered {error.code}"
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        return inert(f"{reason}")
