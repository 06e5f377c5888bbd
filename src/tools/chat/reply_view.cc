#include "tools/chat/reply_view.h"

namespace sluice {

void take_reply(ChatOutput& output, ChatReply& reply) {
  for (OutputPart& part : output.take_parts()) {
    switch (part.kind) {
      case OutputPart::Kind::content:
        reply.content += part.text;
        break;
      case OutputPart::Kind::reasoning:
        reply.reasoning += part.text;
        break;
      case OutputPart::Kind::call: {
        if (!part.id.empty()) {
          reply.calls.push_back(
              json::object{{"id", part.id},
                           {"type", "function"},
                           {"function", json::object{{"name", part.name}, {"arguments", ""}}}});
        }
        json::object& function = reply.calls.back().as_object()["function"].as_object();
        function["arguments"].as_string() += part.text;
        break;
      }
    }
  }
}

ChatReply split_reply(const ChatReading& reading, std::string_view text) {
  ChatOutput output(reading, [] { return std::string(); });
  output.push(text, true);
  ChatReply reply;
  take_reply(output, reply);
  return reply;
}

void ReplyView::push(std::string_view piece, bool finished) {
  if (!output_) return view_.show(piece);
  output_->push(piece, finished);
  const size_t said = reply_.content.size(), thought = reply_.reasoning.size();
  take_reply(*output_, reply_);
  view_.show_thoughts(std::string_view(reply_.reasoning).substr(thought));
  if (said == 0 && !reply_.content.empty() && !reply_.reasoning.empty())
    view_.show_thoughts("\n\n");
  view_.show(std::string_view(reply_.content).substr(said));
}

void ReplyView::finish() {
  if (output_) push("", true);
  view_.finish();
}

}  // namespace sluice
