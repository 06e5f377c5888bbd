#include "base/sha.h"
#include "net/digest.h"

namespace sluice {

struct FileDigest::State {
  Sha256 hash;
};

FileDigest::FileDigest() : state_(std::make_unique<State>()) {}
FileDigest::~FileDigest() = default;
FileDigest::FileDigest(FileDigest&&) noexcept = default;
FileDigest& FileDigest::operator=(FileDigest&&) noexcept = default;

void FileDigest::update(std::string_view bytes) { state_->hash.update(bytes); }
std::string FileDigest::hex() { return state_->hash.hex(); }

}  // namespace sluice
