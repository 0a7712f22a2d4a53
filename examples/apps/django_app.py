"""Sessions in a Django app under ASGI, in one file. Store and keys come from the environment: see README.md."""

import os

import django
from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

from gateway import SessionMiddleware
from session_store import current_session

settings.configure(SECRET_KEY=os.environ["MCP_GATEWAY_KEYS"], ALLOWED_HOSTS=["127.0.0.1"], ROOT_URLCONF=__name__)
django.setup()


async def visit(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"visits": await current_session().state.increment("visits"), "worker": os.getpid()})


def visit_in_a_thread(request: HttpRequest) -> JsonResponse:
    visits = async_to_sync(current_session().state.increment)("visits")
    return JsonResponse({"visits": visits, "worker": os.getpid()})


urlpatterns = [path("visit", visit), path("visit-in-a-thread", visit_in_a_thread)]
app = SessionMiddleware(get_asgi_application())
