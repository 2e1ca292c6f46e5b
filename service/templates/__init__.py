"""Chat templates: a conversation becomes the text that a model was trained on.

Rendering is pure. Knows the core values and `BackendInfo`, and no engine.
"""

from service.templates.loading import BUILTIN_NAMES, load_template
from service.templates.template import ChatTemplate, TemplateError

__all__ = ["BUILTIN_NAMES", "ChatTemplate", "TemplateError", "load_template"]
