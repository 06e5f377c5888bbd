// SHA-256 of large files: by OpenSSL where the build has it (digest_openssl.cc), which knows the
// CPU's instructions for it, else by base/sha.h (digest_plain.cc), at about a tenth of the speed.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace sluice {

class FileDigest {
 public:
  FileDigest();
  ~FileDigest();
  FileDigest(FileDigest&&) noexcept;
  FileDigest& operator=(FileDigest&&) noexcept;

  void update(std::string_view bytes);
  std::string hex();  // ends it: lower case, once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice
