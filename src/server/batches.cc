// /v1/batches: files of requests that are answered when nobody else asks.
#include <ctime>

#include "base/str.h"
#include "server/batch_file.h"
#include "server/batch_query.h"
#include "server/batch_runner.h"
#include "server/fields.h"
#include "server/routes.h"

namespace sluice {

namespace {

constexpr std::string_view kBatchesPath = "/v1/batches/", kCancel = "/cancel";
constexpr size_t kMaxMetadata = 16, kMaxMetadataKey = 64, kMaxMetadataText = 512;

const ApiError kNoBatch{404, "there is no such batch", "", "not_found"};

void read_metadata(Fields& f, json::value& out) {
  const json::value* v = f.get("metadata");
  if (!v) return;
  bool good = v->is_object() && v->get_object().size() <= kMaxMetadata;
  if (good)
    for (const auto& [key, text] : v->get_object())
      good &= key.size() <= kMaxMetadataKey && text.is_string() &&
              text.get_string().size() <= kMaxMetadataText;
  if (!good)
    return f.fail("metadata",
                  "metadata must be an object of at most 16 strings (keys of up to 64 bytes, "
                  "values of up to 512)");
  out = *v;
}

void read_output_expiry(Fields& f, int64_t& seconds) {
  const json::value* v = f.get("output_expires_after");
  if (!v) return;
  if (!v->is_object()) return f.fail("output_expires_after", "it must be an object");
  Fields inner(*v);
  std::string anchor;
  int given = 0;
  inner.text("anchor", anchor);
  inner.whole("seconds", given, kLeastFileSeconds, kMostFileSeconds);
  if (!inner.failed() && anchor != "created_at") inner.fail("anchor", "anchor must be created_at");
  if (!inner.failed() && given == 0) inner.fail("seconds", "seconds is missing");
  if (inner.failed())
    return f.fail("output_expires_after." + inner.error()->param, inner.error()->message);
  seconds = given;
}

Refusal read_batch(const json::value& body, std::vector<std::string>& unknown, BatchRecord& out) {
  if (!body.is_object()) return ApiError{400, "the body must be a JSON object", "", ""};
  Fields f(body);
  std::string window;
  f.text("input_file_id", out.input_file);
  f.text("endpoint", out.endpoint);
  f.text("completion_window", window);
  read_metadata(f, out.metadata);
  read_output_expiry(f, out.file_seconds);
  if (!f.failed() && out.input_file.empty()) f.fail("input_file_id", "input_file_id is missing");
  if (!f.failed() && !is_batch_url(out.endpoint))
    f.fail("endpoint",
           "endpoint must be /v1/chat/completions, /v1/completions, /v1/embeddings or "
           "/v1/responses");
  if (!f.failed() && window != "24h") f.fail("completion_window", "completion_window must be 24h");
  unknown = f.unknown();
  return f.error();
}

}  // namespace

void serve_batch_create(Service& s, Call call) {
  BatchStore* store = batch_store(s, call);
  if (!store) return;
  std::optional<json::value> body = s.body(call);
  if (!body) return;
  BatchRecord batch;
  std::vector<std::string> unknown;
  if (Refusal refused = read_batch(*body, unknown, batch)) return s.fail(call, *refused);
  s.note_unknown(unknown);
  batch.owner = s.keys().owner(call.key);
  const std::optional<FileRecord> file = store->file(batch.input_file, batch.owner);
  if (!file || file->purpose != "batch")
    return s.fail(call, {400,
                         strf("there is no file %s for a batch: upload it to /v1/files with "
                              "purpose batch",
                              quote(batch.input_file).c_str()),
                         "input_file_id", "not_found"});
  batch.id = s.new_id("batch_");
  batch.output_file = s.new_id("file-");
  batch.error_file = s.new_id("file-");
  batch.created_at = std::time(nullptr);
  batch.expires_at = batch.created_at + kBatchSeconds;
  if (auto ok = store->add_batch(batch); !ok) return s.fail(call, store_error(ok.error()));
  s.batches().poke();
  s.reply_json(call, batch_json(batch));
}

void serve_batches(Service& s, Call call) {
  BatchStore* store = batch_store(s, call);
  if (!store) return;
  PageQuery query;
  if (Refusal refused = parse_page_query(call.http.query, 100, query))
    return s.fail(call, *refused);
  json::object page;
  if (Refusal refused =
          make_page(store->batches(s.keys().owner(call.key)), query, batch_json, page))
    return s.fail(call, *refused);
  s.reply_json(call, page);
}

void serve_batch(Service& s, Call call) {
  BatchStore* store = batch_store(s, call);
  if (!store) return;
  const std::string id = call.http.path.substr(kBatchesPath.size());
  const std::optional<BatchRecord> batch = store->batch(id, s.keys().owner(call.key));
  if (!batch) return s.fail(call, kNoBatch);
  s.reply_json(call, batch_json(*batch));
}

void serve_batch_cancel(Service& s, Call call) {
  BatchStore* store = batch_store(s, call);
  if (!store) return;
  std::string_view id = std::string_view(call.http.path).substr(kBatchesPath.size());
  id.remove_suffix(kCancel.size());
  Result<BatchRecord> batch =
      store->cancel(std::string(id), s.keys().owner(call.key), std::time(nullptr));
  if (!batch) return s.fail(call, store_error(batch.error()));
  s.batches().poke();
  s.reply_json(call, batch_json(*batch));
}

}  // namespace sluice
