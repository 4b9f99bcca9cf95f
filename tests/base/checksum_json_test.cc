#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/json_object.h"

namespace jackscrew {
namespace {

// RFC 3720, appendix B.4, and the check value of the CRC catalogues.
TEST(Crc32c, KnownVectors) {
  std::string rising;
  for (int i = 0; i < 32; ++i) rising.push_back(static_cast<char>(i));
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  EXPECT_EQ(crc32c(rising), 0x46DD794Eu);
}

TEST(Crc32c, PiecesAreTheWhole) {
  const std::vector<uint8_t> digits = {'1', '2', '3', '4', '5', '6', '7', '8', '9'};
  for (size_t cut = 0; cut <= digits.size(); ++cut) {
    Crc32c crc;
    crc.add(std::span(digits).first(cut));
    crc.add(std::span(digits).subspan(cut));
    EXPECT_EQ(crc.value(), 0xE3069283u) << cut;
  }
}

TEST(JsonObject, KeepsOrderAndEscapes) {
  JsonObject inner;
  inner.add("bytes", int64_t{1} << 40).add("fits", true);
  JsonObject object;
  object.add("text", "a\"b\n").add("x", 0.1).add("f", 0.1f).add("inner", inner).merge({});
  EXPECT_EQ(
      object.text(),
      R"({"text": "a\"b\n", "x": 0.1, "f": 0.1, "inner": {"bytes": 1099511627776, "fits": true}})");
  EXPECT_EQ(JsonObject().merge(inner).text(), inner.text());
  EXPECT_EQ(JsonObject().text(), "{}");
  const std::vector<std::string> texts = {"a", "\""};
  EXPECT_EQ(JsonObject().add("two", texts).add("none", std::vector<std::string>()).text(),
            R"({"two": ["a", "\""], "none": []})");
}

TEST(JsonObject, NumbersReadBackOrBecomeNull) {
  JsonObject object;
  object.add("nan", std::nan("")).add("inf", -std::numeric_limits<float>::infinity());
  object.add("small", 5e-324).add("third", 1.0 / 3.0).add("bad", "\xff");
  const auto json = nlohmann::json::parse(object.text());
  EXPECT_TRUE(json["nan"].is_null());
  EXPECT_TRUE(json["inf"].is_null());
  EXPECT_EQ(json["small"].get<double>(), 5e-324);
  EXPECT_EQ(json["third"].get<double>(), 1.0 / 3.0);
}

}  // namespace
}  // namespace jackscrew
