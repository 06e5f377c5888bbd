#include "dialect/output_event.h"

namespace sluice::dialect {

void EventWriter::text(OutputEvent::Kind kind, std::string_view text, int call) {
  if (text.empty()) return;
  if (!out_->empty() && out_->back().kind == kind && out_->back().call == call) {
    out_->back().text += text;
  } else {
    out_->push_back({kind, call, std::string(text)});
  }
}

void EventWriter::begin_call(std::string_view name) {
  open_ = true;
  ++changes_;
  out_->push_back({OutputEvent::Kind::call_begin, calls_++, std::string(name)});
}

void EventWriter::arguments(std::string_view text) {
  if (!text.empty()) ++changes_;
  this->text(OutputEvent::Kind::arguments, text, calls_ - 1);
}

void EventWriter::end_call(bool complete) {
  open_ = false;
  ++changes_;
  out_->push_back({OutputEvent::Kind::call_end, calls_ - 1, {}, complete});
}

}  // namespace sluice::dialect
