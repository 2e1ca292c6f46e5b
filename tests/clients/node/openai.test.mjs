// OpenAI's package for Node, in one process.
import "./openai_chat.mjs";
import "./openai_tools.mjs";
