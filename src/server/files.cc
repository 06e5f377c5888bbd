// /v1/files: inputs and results of batches.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <system_error>

#include "base/log.h"
#include "base/str.h"
#include "server/batch_query.h"
#include "server/multipart.h"
#include "server/routes.h"

namespace sluice {

namespace {

constexpr std::string_view kFilesPath = "/v1/files/", kContent = "/content";
constexpr size_t kReadBytes = 32 << 10;

const ApiError kNoFile{404, "there is no such file", "", "not_found"};

// What a form says about a file.
struct Upload {
  FileRecord file;
  std::string_view content;
  bool has_content = false;
};

template <typename T>
bool parse_number(std::string_view text, T& to) {
  auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), to);
  return error == std::errc{} && stop == text.data() + text.size();
}

Refusal wrong_field(std::string_view name, std::string message) {
  return ApiError{400, std::move(message), std::string(name), ""};
}

Refusal read_part(const FormPart& part, int64_t& keep, Upload& out) {
  if (part.name == "file") {
    const std::string_view name =
        std::string_view(part.filename).substr(part.filename.find_last_of("/\\") + 1);
    const bool plain = std::ranges::none_of(
        name, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
    if (name.empty() || name.size() > 255 || !plain || !valid_utf8(name))
      return wrong_field("file", "the file needs a name of 1 to 255 bytes");
    out.file.filename = name;
    out.content = part.data;
    out.has_content = true;
  } else if (part.name == "purpose") {
    if (part.data != "batch")
      return wrong_field("purpose", strf("purpose is %s: this server has files for batches alone",
                                         quote(part.data).c_str()));
    out.file.purpose = part.data;
  } else if (part.name == "expires_after[anchor]") {
    if (part.data != "created_at") return wrong_field(part.name, "the anchor must be created_at");
  } else if (part.name == "expires_after[seconds]") {
    if (!parse_number(part.data, keep) || keep < kLeastFileSeconds || keep > kMostFileSeconds)
      return wrong_field(
          part.name, strf("seconds must be %lld to %lld", static_cast<long long>(kLeastFileSeconds),
                          static_cast<long long>(kMostFileSeconds)));
  } else {
    return wrong_field(part.name, strf("the form has a field %s, which means nothing here",
                                       quote(part.name).c_str()));
  }
  return {};
}

Refusal read_upload(const Call& call, Upload& out) {
  const std::string_view type = call.http.header("content-type");
  if (!is_form(type))
    return ApiError{415, "the body must be multipart/form-data, with file and purpose", "", ""};
  Result<std::vector<FormPart>> parts = parse_form(type, call.http.body);
  if (!parts) return ApiError{400, parts.error().message, "", "invalid_form"};
  int64_t keep = kMostFileSeconds;
  for (const FormPart& part : *parts)
    if (Refusal refused = read_part(part, keep, out)) return refused;
  if (!out.has_content) return wrong_field("file", "the form has no file");
  if (out.file.purpose.empty()) return wrong_field("purpose", "the form has no purpose");
  if (out.content.empty()) return wrong_field("file", "the file is empty");
  out.file.created_at = std::time(nullptr);
  out.file.expires_at = out.file.created_at + keep;
  return {};
}

// A file that is read as the client takes it. It may be deleted meanwhile: it is open.
class FileReader {
 public:
  explicit FileReader(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~FileReader() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;
  bool good() const { return fd_ >= 0; }
  bool read(std::string& out) {
    const size_t before = out.size();
    out.resize(before + kReadBytes);
    ssize_t got = 0;
    do got = ::read(fd_, out.data() + before, kReadBytes);
    while (got < 0 && errno == EINTR);
    out.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0) throw std::system_error(errno, std::generic_category(), "reading a stored file");
    return got > 0;
  }

 private:
  int fd_;
};

}  // namespace

BatchStore* batch_store(Service& s, const Call& call) {
  if (Refusal r = s.check_ready()) return s.fail(call, *r), nullptr;
  if (BatchStore* store = s.options().batches.get()) return store;
  s.fail(call, {404, "this server keeps no files and batches (serve --batch-dir DIR)", "",
                "not_enabled"});
  return nullptr;
}

ApiError store_error(const Error& e, const char* param) {
  const char* code = e.code == 404   ? "not_found"
                     : e.code == 409 ? "conflict"
                     : e.code < 500  ? "storage_full"
                                     : "";
  if (e.code >= 500) {
    LOG(error, "%s", e.message.c_str());
    return {500, "the server cannot use its folder of batches: see its log", "", code};
  }
  return {e.code, e.message, param, code};
}

Refusal parse_page_query(std::string_view text, size_t most, PageQuery& out) {
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(pair.size() + 1, text.size()));
    const std::string_view name = pair.substr(0, pair.find('='));
    const std::string_view value = pair.substr(std::min(name.size() + 1, pair.size()));
    if (name == "limit") {
      if (!parse_number(value, out.limit) || out.limit < 1 || out.limit > most)
        return ApiError{400, strf("limit must be 1 to %zu", most), "limit", ""};
    } else if (name == "after") {
      out.after = value;
    } else if (name == "purpose") {
      out.purpose = value;
    } else if (name == "order") {
      if (value != "asc" && value != "desc")
        return ApiError{400, "order must be asc or desc", "order", ""};
      out.ascending = value == "asc";
    }
  }
  return {};
}

void serve_file_upload(Service& s, Call call) {
  BatchStore* store = batch_store(s, call);
  if (!store) return;
  Upload upload;
  if (Refusal refused = read_upload(call, upload)) return s.fail(call, *refused);
  upload.file.id = s.new_id("file-");
  upload.file.owner = s.keys().owner(call.key);
  Result<FileRecord> file = store->add_file(std::move(upload.file), upload.content);
  if (!file) return s.fail(call, store_error(file.error(), "file"));
  s.reply_json(call, file_json(*file));
}

void serve_files(Service& s, Call call) {
  BatchStore* store = batch_store(s, call);
  if (!store) return;
  PageQuery query;
  query.limit = 10'000;
  if (Refusal refused = parse_page_query(call.http.query, 10'000, query))
    return s.fail(call, *refused);
  std::vector<FileRecord> all = store->files(s.keys().owner(call.key));
  if (!query.purpose.empty())
    std::erase_if(all, [&](const FileRecord& f) { return f.purpose != query.purpose; });
  json::object page;
  if (Refusal refused = make_page(std::move(all), query, file_json, page))
    return s.fail(call, *refused);
  s.reply_json(call, page);
}

void serve_file(Service& s, Call call) {
  BatchStore* store = batch_store(s, call);
  if (!store) return;
  const std::string id = call.http.path.substr(kFilesPath.size());
  const std::optional<FileRecord> file = store->file(id, s.keys().owner(call.key));
  if (!file) return s.fail(call, kNoFile);
  s.reply_json(call, file_json(*file));
}

void serve_file_content(Service& s, Call call) {
  BatchStore* store = batch_store(s, call);
  if (!store) return;
  std::string id = call.http.path.substr(kFilesPath.size());
  id.resize(id.size() - kContent.size());
  if (!store->file(id, s.keys().owner(call.key))) return s.fail(call, kNoFile);
  auto reader = std::make_shared<FileReader>(store->file_path(id));
  if (!reader->good()) return s.fail(call, kNoFile);
  HttpResponse head;
  head.content_type = "application/octet-stream";
  s.reply(call, std::move(head), [reader](std::string& out) { return reader->read(out); });
}

void serve_file_end(Service& s, Call call) {
  BatchStore* store = batch_store(s, call);
  if (!store) return;
  const std::string id = call.http.path.substr(kFilesPath.size());
  if (auto ok = store->erase_file(id, s.keys().owner(call.key)); !ok)
    return s.fail(call, store_error(ok.error()));
  s.reply_json(call, json::object{{"id", id}, {"object", "file"}, {"deleted", true}});
}

}  // namespace sluice
