"""Hide passwords in database URLs, however malformed the URL is."""

from __future__ import annotations

import re
from urllib.parse import unquote

HIDDEN = "***"
_SECRET = re.compile(r"pass|pwd|\bpw\b|secret|token|credential", re.I)
# Each pattern that searches a text starts at most once in a word and gives nothing back
# (`++`), so that the time is linear in the text.
_PAIR = re.compile(r"(?<![\w%])([\w%]++)\s*+[=:]\s*+")
_HOST = r"(?:\[[^\]@]*\]|[^\[\]/:@?#,\s]*)(?::\d*)?"
_PLACE = rf"{_HOST}(?:,{_HOST})*(?:/[^?#@]*)?"
#: The part after `scheme://` of a URL in which the end of the password is unambiguous.
_PROPER = re.compile(
    rf"(?:[^:/@?#\s]*(?::[^@/?#\s]*)?@{_PLACE}(?:\?[^@]*)?)|{_PLACE}(?:\?.*)?", re.S
)
#: A URL in a sentence, with the punctuation that follows it.
_URL = re.compile(
    r"(?<![\w+.-])(?P<before>(?:(?![A-Za-z])[\w+.-])*+)(?P<name>[A-Za-z][\w+.-]*+://)(?P<rest>\S++)"
)
#: `password=VALUE` in a sentence; other secret names are words of ours there (`tokens=48`).
_PASSWORD = re.compile(
    r"(?P<name>(?:password|passwd|passphrase|pwd)\s*+=\s*+)"
    r"(?:'[^']*'|\"[^\"]*\"|(?P<rest>\S++))",
    re.I,
)
_PUNCTUATION = ".,;:!?)]'\"`"
_SCHEME = re.compile(r"[\s'\"]*[\w+.-]*")
_COLON = re.compile(r":|%3a", re.I)


def mask_passwords(text: str) -> str:
    """A URL with every password replaced by `***`.

    In a malformed URL more than the password may be hidden.
    """
    decoded = unquote(text)
    if "://" not in text and "://" in decoded:
        text = decoded
    scheme, separator, rest = text.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        return _userinfo(_pairs(text))
    path, mark, query = rest.partition("?")
    file = "sqlite" in scheme and rest.startswith("/")
    if file or _PROPER.fullmatch(rest):
        path = path if file or "@" not in path else _userinfo(path)
        path, semicolon, more = path.partition(";")
        return f"{scheme}://{path}{semicolon}{_query(more)}{mark}{_query(query)}"
    return f"{scheme}://{_mask_malformed(rest)}"


def masked_within(text: str) -> str:
    """A sentence with every URL and `password=VALUE` in it masked."""
    return _PASSWORD.sub(_mask_value, _URL.sub(_mask_url, text))


def _mask_url(found: re.Match[str]) -> str:
    kept, after = _split_end(found["rest"])
    return f"{found['before']}{mask_passwords(found['name'] + kept)}{after}"


def _mask_value(found: re.Match[str]) -> str:
    return f"{found['name']}{HIDDEN}{_split_end(found['rest'] or '')[1]}"


def _split_end(word: str) -> tuple[str, str]:
    """A word and the punctuation that follows it; at least one character belongs to the word."""
    kept = word.rstrip(_PUNCTUATION) or word[:1]
    return kept, word[len(kept) :]


def _mask_malformed(rest: str) -> str:
    path, mark, query = rest.partition("?")
    text = _pairs(f"{path}{mark}{_query(query)}")
    if "@" in text or "%40" in text:
        return _userinfo(text)
    name, colon, _ = text.partition(":")
    return f"{name}:{HIDDEN}" if colon else text  # a port that is not a number may be a password


def _userinfo(text: str) -> str:
    """Hide the text between the first colon, or the first of several `@`, and the last `@`."""
    end = max(text.rfind("@"), text.rfind("%40") if "@" not in text else -1)
    if 0 <= text.find("@") < end and _COLON.search(text, 0, end) is None:
        return f"{text[: text.find('@')]}@{HIDDEN}{text[end:]}"
    colon = _COLON.search(text, 0, max(end, 0))
    return text if colon is None else f"{text[: colon.start()]}:{HIDDEN}{text[end:]}"


def _query(query: str) -> str:
    """Hide everything after the first secret parameter, whose value may contain separators."""
    shown: list[str] = []
    for part in re.split("([&;])", query):
        name, equals, _ = part.partition("=")
        if equals and _SECRET.search(unquote(name)):
            return "".join([*shown, name, equals, HIDDEN])
        shown.append(part)
    return "".join(shown)


def _pairs(text: str) -> str:
    """Hide the text after `password=`, as in a connection string that is not a URL."""
    named = (found for found in _PAIR.finditer(text) if _SECRET.search(found[1]))
    found = next(named, None)
    return text if found is None else f"{text[: found.end()]}{HIDDEN}"
