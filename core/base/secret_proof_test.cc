#include "core/base/secret_proof.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/fault_injection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using testing::MatchesRegex;

TEST(JobKeyTest, KeysAreHexadecimalAndNoTwoAreEqual) {
  const std::string first = NewJobKey();
  EXPECT_THAT(first, MatchesRegex("[0-9a-f]{32}"));
  EXPECT_NE(NewJobKey(), first);
  EXPECT_EQ(CheckJobKey("key", first), absl::OkStatus());
}

// Whoever asks for a challenge then got UNIMPLEMENTED, from gRPC, which had caught the exception.
TEST(JobKeyTest, AProcessWithoutDescriptorsHasKeysToo) {
  NewJobKey();  // the undefined behaviour sanitizer opens a pipe at what it sees first
  const NoDescriptorsLeft none;
  EXPECT_THAT(NewJobKey(), MatchesRegex("[0-9a-f]{32}"));
}

using testing::HasSubstr;
using testing::Not;

std::string Refusal(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
  return std::string(status.message());
}

// RFC 4231, test cases 2 and 6.
TEST(HmacTest, HasTheDigestsOfTheStandard) {
  EXPECT_EQ(HmacSha256Hex("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(HmacSha256Hex(std::string(131, '\xaa'),
                          "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(SecretProofTest, WhoHasTheSecretIsLetInOncePerProof) {
  ProofChecker checker("secret");
  ProofMaker maker("secret", checker.NewChallenge());
  const std::string first = maker.Next();
  const std::string second = maker.Next();
  EXPECT_EQ(checker.Check(first), absl::OkStatus());
  EXPECT_EQ(checker.Check(second), absl::OkStatus());
  EXPECT_THAT(Refusal(checker.Check(first)), HasSubstr("shown before"));
  EXPECT_THAT(Refusal(checker.Check(second)), HasSubstr("shown before"));
}

TEST(SecretProofTest, ProofsMayOvertakeEachOtherByTheWindow) {
  ProofChecker checker("secret");
  ProofMaker maker("secret", checker.NewChallenge());
  std::vector<std::string> proofs;
  for (int i = 0; i < 66; ++i) proofs.push_back(maker.Next());
  EXPECT_EQ(checker.Check(proofs[65]), absl::OkStatus());
  EXPECT_EQ(checker.Check(proofs[1]), absl::OkStatus());
  EXPECT_EQ(checker.Check(proofs[64]), absl::OkStatus());
  EXPECT_THAT(Refusal(checker.Check(proofs[0])), HasSubstr("shown before"));
  EXPECT_THAT(Refusal(checker.Check(proofs[1])), HasSubstr("shown before"));
  EXPECT_THAT(Refusal(checker.Check(proofs[64])), HasSubstr("shown before"));
  // One ahead of the highest moves the window by one.
  EXPECT_EQ(checker.Check(maker.Next()), absl::OkStatus());
  EXPECT_THAT(Refusal(checker.Check(proofs[65])), HasSubstr("shown before"));
  EXPECT_EQ(checker.Check(proofs[3]), absl::OkStatus());
}

TEST(SecretProofTest, AnotherSecretIsRefusedWithoutBeingTold) {
  ProofChecker checker("secret");
  ProofMaker maker("guess", checker.NewChallenge());
  const std::string message = Refusal(checker.Check(maker.Next()));
  EXPECT_THAT(message, HasSubstr("another secret"));
  EXPECT_THAT(message, Not(HasSubstr("guess")));
  EXPECT_THAT(Refusal(checker.Check("")), HasSubstr("found none"));
}

TEST(SecretProofTest, AChallengeIsGoodForAMinuteAndForItsMakerOnly) {
  ProofChecker checker("secret");
  const MonotonicTime now = MonotonicTime::Now();
  ProofMaker maker("secret", checker.NewChallenge(now));
  EXPECT_EQ(checker.Check(maker.Next(), now + ProofChecker::kLifetime - absl::Seconds(1)),
            absl::OkStatus());
  EXPECT_THAT(
      Refusal(checker.Check(maker.Next(), now + ProofChecker::kLifetime + absl::Seconds(1))),
      HasSubstr("too old"));
  ProofChecker other("secret");
  EXPECT_THAT(Refusal(other.Check(maker.Next(), now)), HasSubstr("no answer to a challenge"));
}

TEST(SecretProofTest, MalformedProofsAreRefused) {
  ProofChecker checker("secret");
  const std::string challenge = checker.NewChallenge();
  const std::string good = ProofMaker("secret", challenge).Next();
  const std::string mac = good.substr(good.rfind(':') + 1);
  for (const std::string& bad :
       {std::string("x"), std::string(":::"), std::string(1 << 20, 'x'), challenge,
        absl::StrCat(challenge, ":0:", mac), absl::StrCat(challenge, ":-1:", mac),
        absl::StrCat(challenge, ":01:", mac), absl::StrCat(challenge, ": 1:", mac),
        absl::StrCat(challenge, ":99999999999999999999:", mac), absl::StrCat(good, ":"),
        absl::StrCat("0", good), absl::StrCat(challenge, ":1:"), absl::StrCat(good, "0")}) {
    EXPECT_EQ(checker.Check(bad).code(), absl::StatusCode::kUnauthenticated) << bad.substr(0, 200);
  }
  EXPECT_EQ(checker.Check(good), absl::OkStatus());
}

TEST(SecretProofTest, WithoutASecretNothingIsAskedFor) {
  ProofChecker checker("");
  EXPECT_FALSE(checker.asks());
  EXPECT_EQ(checker.Check(""), absl::OkStatus());
}

}  // namespace
}  // namespace gradsync
