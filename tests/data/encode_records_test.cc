// How many records are encoded at once within a memory limit.
#include "data/encode_records.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/errors.h"
#include "tests/support/limit_tree.h"

namespace jackscrew {
namespace {

std::vector<FoundRecord> found_records(size_t count, int64_t bytes, bool is_document) {
  const FoundRecord record{"a", static_cast<size_t>(bytes), true, is_document, {}};
  return std::vector<FoundRecord>(count, record);
}

// Each byte of a document counts 40, of another record 46, since it may be of a single word.
TEST(EncodeRecords, AsManyAtOnceAsTheLimitLeavesEnoughFor) {
  const LimitTree tree;
  const auto at_once = [&](size_t count, int64_t bytes, bool is_document) {
    return count_at_once(found_records(count, bytes, is_document), tree.root());
  };
  EXPECT_EQ(at_once(8, 16 * kMiB, true), 8u);  // no limit
  tree.process(kMountedV2, "0::/run.scope\n");
  tree.group_v2("/run.scope", std::to_string(500 * kMiB), 20 * kMiB);
  EXPECT_EQ(at_once(8, 4 * kMiB, true), 3u);
  EXPECT_EQ(at_once(3, 4 * kMiB, true), 3u);
  EXPECT_EQ(at_once(8, 4 * kMiB, false), 2u);
  // One does not need what it would if it were a single word.
  EXPECT_EQ(at_once(8, 16 * kMiB, true), 1u);
  EXPECT_EQ(at_once(8, 32 * kMiB, false), 1u);
  // What little records take is not looked at.
  tree.group_v2("/run.scope", std::to_string(20 * kMiB), 20 * kMiB);
  EXPECT_EQ(at_once(50, 30, false), 50u);
  EXPECT_EQ(at_once(5000, 30, false), 1u);
}

TEST(EncodeRecords, OneThatDoesNotFitIsRefused) {
  const LimitTree tree;
  tree.process(kMountedV2, "0::/run.scope\n");
  tree.group_v2("/run.scope", std::to_string(148 * kMiB), 20 * kMiB);
  const auto at_once = [&](int64_t bytes, bool is_document) {
    return count_at_once(found_records(2, bytes, is_document), tree.root());
  };
  EXPECT_EQ(at_once(16 * kMiB, true), 1u);
  expect_error(ErrorKind::does_not_fit, "encoding 17.0 MiB of text at a time needs 136.0 MiB",
               [&] { at_once(17 * kMiB, true); });
  EXPECT_EQ(at_once(9 * kMiB, false), 1u);
  expect_error(ErrorKind::does_not_fit, "encoding 10.0 MiB of text at a time needs 140.0 MiB",
               [&] { at_once(10 * kMiB, false); });
  // A record that is too long for any limit is the record's fault.
  EXPECT_EQ(at_once(65 * kMiB, false), 2u);
}

}  // namespace
}  // namespace jackscrew
