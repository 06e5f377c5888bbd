#include "server/batch_record.h"

#include "server/fields.h"

namespace sluice {

namespace {

json::value time_or_null(int64_t t) { return t == 0 ? json::value(nullptr) : json::value(t); }

json::value text_or_null(const std::string& text, bool there) {
  return there ? json::value(text) : json::value(nullptr);
}

// Reads the members of an object; `good` turns false at the first that is missing or no such thing.
struct Members {
  const json::object& object;
  bool good = true;

  const json::value* find(std::string_view name) const { return object.if_contains(name); }
  std::string text(std::string_view name) {
    const json::string* s = text_field(object, name);
    good &= s != nullptr;
    return s ? std::string(*s) : std::string();
  }
  int64_t whole(std::string_view name) {
    const json::value* v = find(name);
    if (v && v->is_null()) return 0;
    good &= v && v->is_int64() && v->get_int64() >= 0;
    return good ? v->get_int64() : 0;
  }
  bool flag(std::string_view name) {
    const json::value* v = find(name);
    good &= v && v->is_bool();
    return good && v->get_bool();
  }
  BatchStatus status(std::string_view name) {
    const auto s = value_named(kBatchStatuses, text(name));
    good &= s.has_value();
    return s.value_or(BatchStatus::failed);
  }
};

Result<json::object> stored_object(std::string_view text) {
  Result<json::value> value = parse_json(text, kRequestJson);
  if (!value) return value.error();
  if (!value->is_object()) return Error{400, "not an object"};
  return std::move(value->get_object());
}

const char* const kSince[] = {"validating_at", "in_progress_at", "finalizing_at", "completed_at",
                              "failed_at",     "expired_at",     "cancelling_at", "cancelled_at"};

}  // namespace

bool is_over(BatchStatus s) {
  return s == BatchStatus::completed || s == BatchStatus::failed || s == BatchStatus::expired ||
         s == BatchStatus::cancelled;
}

json::object file_json(const FileRecord& f) {
  return {{"id", f.id},
          {"object", "file"},
          {"bytes", f.bytes},
          {"created_at", f.created_at},
          {"expires_at", time_or_null(f.expires_at)},
          {"filename", f.filename},
          {"purpose", f.purpose},
          {"status", "processed"},
          {"status_details", nullptr}};
}

json::object batch_json(const BatchRecord& b) {
  json::value errors = nullptr;
  if (!b.problem.empty())
    errors = json::object{{"object", "list"},
                          {"data", json::array{json::object{{"code", b.problem_code},
                                                            {"message", b.problem},
                                                            {"param", nullptr},
                                                            {"line", nullptr}}}}};
  json::object o{{"id", b.id},
                 {"object", "batch"},
                 {"endpoint", b.endpoint},
                 {"errors", std::move(errors)},
                 {"input_file_id", b.input_file},
                 {"completion_window", "24h"},
                 {"status", name_of(kBatchStatuses, b.status)},
                 {"output_file_id", text_or_null(b.output_file, b.has_output)},
                 {"error_file_id", text_or_null(b.error_file, b.has_errors)},
                 {"created_at", b.created_at},
                 {"expires_at", time_or_null(b.expires_at)}};
  for (size_t i = 1; i < kNumBatchStatuses; ++i) o[kSince[i]] = time_or_null(b.since[i]);
  o["request_counts"] =
      json::object{{"total", b.total}, {"completed", b.completed}, {"failed", b.failed}};
  o["metadata"] = b.metadata;
  return o;
}

std::string stored_text(const FileRecord& f) {
  return plain_json(json::object{{"id", f.id},
                                 {"owner", f.owner},
                                 {"filename", f.filename},
                                 {"purpose", f.purpose},
                                 {"bytes", f.bytes},
                                 {"created_at", f.created_at},
                                 {"expires_at", f.expires_at}});
}

Result<FileRecord> stored_file(std::string_view text) {
  Result<json::object> object = stored_object(text);
  if (!object) return object.error();
  Members m{*object};
  FileRecord f;
  f.id = m.text("id"), f.owner = m.text("owner");
  f.filename = m.text("filename"), f.purpose = m.text("purpose");
  f.bytes = static_cast<uint64_t>(m.whole("bytes"));
  f.created_at = m.whole("created_at");
  f.expires_at = m.whole("expires_at");
  if (!m.good) return Error{400, "not the record of a file"};
  return f;
}

std::string stored_text(const BatchRecord& b) {
  json::array since;
  for (int64_t t : b.since) since.emplace_back(t);
  return plain_json(json::object{{"id", b.id},
                                 {"owner", b.owner},
                                 {"endpoint", b.endpoint},
                                 {"input_file", b.input_file},
                                 {"output_file", b.output_file},
                                 {"error_file", b.error_file},
                                 {"has_output", b.has_output},
                                 {"has_errors", b.has_errors},
                                 {"status", name_of(kBatchStatuses, b.status)},
                                 {"end", name_of(kBatchStatuses, b.end)},
                                 {"since", std::move(since)},
                                 {"created_at", b.created_at},
                                 {"expires_at", b.expires_at},
                                 {"file_seconds", b.file_seconds},
                                 {"total", b.total},
                                 {"completed", b.completed},
                                 {"failed", b.failed},
                                 {"metadata", b.metadata},
                                 {"problem", b.problem},
                                 {"problem_code", b.problem_code}});
}

Result<BatchRecord> stored_batch(std::string_view text) {
  Result<json::object> object = stored_object(text);
  if (!object) return object.error();
  Members m{*object};
  BatchRecord b;
  b.id = m.text("id"), b.owner = m.text("owner");
  b.endpoint = m.text("endpoint"), b.input_file = m.text("input_file");
  b.output_file = m.text("output_file"), b.error_file = m.text("error_file");
  b.has_output = m.flag("has_output"), b.has_errors = m.flag("has_errors");
  b.status = m.status("status"), b.end = m.status("end");
  b.created_at = m.whole("created_at"), b.expires_at = m.whole("expires_at");
  b.file_seconds = m.whole("file_seconds");
  b.total = static_cast<uint64_t>(m.whole("total"));
  b.completed = static_cast<uint64_t>(m.whole("completed"));
  b.failed = static_cast<uint64_t>(m.whole("failed"));
  b.problem = m.text("problem"), b.problem_code = m.text("problem_code");
  const json::value *since = m.find("since"), *metadata = m.find("metadata");
  m.good &= since && since->is_array() && since->get_array().size() == kNumBatchStatuses;
  for (size_t i = 0; m.good && i < kNumBatchStatuses; ++i) {
    const json::value& t = since->get_array()[i];
    m.good &= t.is_int64();
    if (m.good) b.since[i] = t.get_int64();
  }
  m.good &= metadata && (metadata->is_null() || metadata->is_object());
  if (!m.good || !is_over(b.end)) return Error{400, "not the record of a batch"};
  b.metadata = *metadata;
  return b;
}

}  // namespace sluice
