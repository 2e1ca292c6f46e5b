// Vercel's AI SDK, in one process.
import "./ai_sdk_text.mjs";
import "./ai_sdk_tools.mjs";
