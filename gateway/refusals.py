"""How what goes wrong around a route becomes a response: the exception handlers of the application.

Also what is answered where no route is: an unknown path, a method that a path
does not have, and OPTIONS, which every path answers.
"""

from __future__ import annotations

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from gateway.exchange import exchange_of
from gateway.generation import error_response
from gateway.openai.errors import ApiError, internal, invalid_request

__all__ = ["on_api_error", "on_bug", "on_http_exception", "unknown_url"]

_OPTIONS: Final = "OPTIONS"
# The path of `OPTIONS *` (RFC 9110 9.3.7), which asks about no resource.
_WHOLE_SERVER: Final = "*"


def on_api_error(request: Request, error: Exception) -> Response:
    """Return the response that tells of an `ApiError`, and note it in the request's exchange."""
    assert isinstance(error, ApiError)
    exchange_of(request.scope).fail(error)
    return error_response(error)


def on_http_exception(request: Request, problem: Exception) -> Response:
    """Return the response to a path or a method that is not served, or to OPTIONS."""
    assert isinstance(problem, HTTPException)
    if problem.status_code == 405:
        allowed = _methods(request)
        headers = {"allow": ", ".join(sorted({*allowed, _OPTIONS}))}
        if request.method == _OPTIONS:
            # Some balancers probe with it. A preflight that comes here is of no configured origin: without the
            # headers of CORS a browser takes it for a no.
            return Response(status_code=204, headers=headers)
        response = on_api_error(
            request,
            invalid_request(
                f"Only {' and '.join(allowed)} requests are accepted.", code="method_not_supported", http_status=405
            ),
        )
        response.headers.update(headers)
        return response
    if request.method == _OPTIONS and request.scope["path"] == _WHOLE_SERVER:
        return Response(status_code=204, headers={"allow": "GET, HEAD, OPTIONS, POST"})
    if problem.status_code == 404:
        return on_api_error(request, unknown_url(request))
    return on_api_error(request, invalid_request(str(problem.detail), http_status=problem.status_code))


def on_bug(request: Request, _problem: Exception) -> Response:
    """Return what is said about a fault of our own; the outermost layer logs it, as the framework raises it again."""
    return on_api_error(request, internal())


def unknown_url(request: Request) -> ApiError:
    """Return the refusal of a path that is not served."""
    return invalid_request(f"Invalid URL ({request.method} {request.url.path[:256]})", http_status=404)


def _methods(request: Request) -> list[str]:
    """Return the methods that the path has, over all of its routes; HEAD is answered wherever GET is."""
    # The framework's own list is that of the first route alone.
    here = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    named = {method for route in here if isinstance(route, Route) for method in route.methods or ()}
    return sorted(named | ({"HEAD"} if "GET" in named else set()))
