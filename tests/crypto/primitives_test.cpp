#include <gtest/gtest.h>

#include <string>

#include "kvpack/base/hex.h"
#include "kvpack/crypto/aead.h"
#include "kvpack/crypto/hkdf.h"
#include "kvpack/crypto/random.h"

namespace kvpack::primitives_test {
namespace {

Bytes unhex(std::string_view text) {
  return *from_hex(text);
}

SecretKey key_of(std::string_view hex) {
  std::array<std::uint8_t, 32> bytes{};
  EXPECT_TRUE(from_hex(hex, bytes));
  return SecretKey(bytes);
}

TEST(Sha256, MatchesFips180Examples) {
  EXPECT_EQ(to_hex(sha256(byte_view("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(sha256(ByteSpan{})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 hash;
  hash.update(byte_view("a"));
  hash.update(byte_view("bc"));
  EXPECT_EQ(hash.finish(), sha256(byte_view("abc")));
  hash.reset();
  EXPECT_EQ(hash.finish(), sha256(ByteSpan{}));
}

TEST(Hmac, MatchesRfc4231) {
  EXPECT_EQ(to_hex(hmac_sha256(HmacKey(Bytes(20, 0x0b)), {byte_view("Hi There")})),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(to_hex(hmac_sha256(HmacKey(byte_view("Jefe")),
                               {byte_view("what do ya want "), byte_view("for nothing?")})),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  // A key longer than a block is hashed first.
  EXPECT_EQ(to_hex(hmac_sha256(HmacKey(Bytes(131, 0xaa)),
                               {byte_view("Test Using Larger Than Block-Size Key - Hash Key First")})),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Hmac, OneKeyServesManyMessages) {
  const HmacKey key(Bytes(32, 1));
  Hmac mac(key);
  mac.update(byte_view("first"));
  const auto first = mac.finish();
  mac.reset();
  mac.update(byte_view("first"));
  EXPECT_EQ(mac.finish(), first);
}

// RFC 5869 gives 42-byte outputs; the first 32 bytes are the first block of test case 1.
TEST(Hkdf, MatchesRfc5869Form) {
  const SecretKey input = key_of("0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b");
  const Bytes salt = unhex("000102030405060708090a0b0c");
  const Bytes info = unhex("f0f1f2f3f4f5f6f7f8f9");
  const Digest32 prk = hmac_sha256(HmacKey(salt), {input.expose()});
  Bytes expand_input = info;
  expand_input.push_back(1);
  const Digest32 expected = hmac_sha256(HmacKey(ByteSpan(prk)), {expand_input});
  EXPECT_TRUE(constant_time_equal(hkdf_sha256(salt, input, {info}).expose(), expected));
}

TEST(Aead, MatchesRfc8439Section282) {
  const SecretKey key = key_of("808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f");
  const AeadNonce nonce{0x07, 0, 0, 0, 0x40, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47};
  const Bytes aad = unhex("50515253c0c1c2c3c4c5c6c7");
  const std::string text =
      "Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen "
      "would be "
      "it.";
  Bytes sealed(text.size() + kAeadTagBytes);
  aead_seal(key, nonce, aad, {byte_view(text).first(10), byte_view(text).subspan(10)}, sealed);
  EXPECT_EQ(to_hex(ByteSpan(sealed).last(16)), "1ae10b594f09e26a7e902ecbd0600691");
  EXPECT_EQ(to_hex(ByteSpan(sealed).first(16)), "d31a8d34648e60db7b86afbc53ef7ec2");

  Bytes opened(text.size());
  ASSERT_TRUE(aead_open(key, nonce, aad, sealed, opened));
  EXPECT_EQ(text_view(opened), text);
}

TEST(Aead, EveryFlippedBitIsRefusedAndTheOutputWiped) {
  const SecretKey key = key_of("808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f");
  const AeadNonce nonce{};
  const Bytes aad{1, 2, 3};
  Bytes sealed(5 + kAeadTagBytes);
  aead_seal(key, nonce, aad, {byte_view("hello")}, sealed);
  for (std::size_t bit = 0; bit < sealed.size() * 8; ++bit) {
    Bytes bad = sealed;
    bad[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
    Bytes opened(5, 9);
    EXPECT_FALSE(aead_open(key, nonce, aad, bad, opened));
    EXPECT_TRUE(all_zero(opened));
  }
  Bytes opened(5);
  EXPECT_FALSE(aead_open(key, nonce, Bytes{1, 2, 4}, sealed, opened));
}

TEST(Aead, PartsAreOpenedInTheirPlacesOrWiped) {
  const SecretKey key = key_of("808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f");
  const AeadNonce nonce{1};
  const Bytes aad{1, 2, 3};
  Bytes text(300);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::uint8_t>(i * 7);
  Bytes sealed(text.size() + kAeadTagBytes);
  aead_seal(key, nonce, aad, {text}, sealed);
  const auto tag = ByteSpan(sealed).last<kAeadTagBytes>();
  for (const std::size_t cut : {0U, 1U, 16U, 63U, 64U, 65U, 300U}) {
    Bytes front(sealed.begin(), sealed.begin() + static_cast<std::ptrdiff_t>(cut));
    Bytes back(sealed.begin() + static_cast<std::ptrdiff_t>(cut), sealed.end() - kAeadTagBytes);
    const Bytes sealed_front = front;
    const Bytes sealed_back = back;
    ASSERT_TRUE(aead_open_in_place(key, nonce, aad, {front, back}, tag)) << cut;
    EXPECT_TRUE(std::ranges::equal(front, ByteSpan(text).first(cut)));
    EXPECT_TRUE(std::ranges::equal(back, ByteSpan(text).subspan(cut)));

    front = sealed_front;
    back = sealed_back;
    (back.empty() ? front : back).back() ^= 1;
    EXPECT_FALSE(aead_open_in_place(key, nonce, aad, {front, back}, tag)) << cut;
    EXPECT_TRUE(all_zero(front) && all_zero(back)) << cut;
  }
}

TEST(SecretKey, MovingWipesTheSource) {
  SecretKey a = key_of("808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f");
  const SecretKey b = std::move(a);
  EXPECT_TRUE(all_zero(a.expose()));
  EXPECT_EQ(b.expose()[0], 0x80);
}

TEST(SystemRandom, FillsAndDiffers) {
  SystemRandom random;
  Bytes a(64);
  Bytes b(64);
  ASSERT_TRUE(random.fill(a).has_value());
  ASSERT_TRUE(random.fill(b).has_value());
  EXPECT_NE(a, b);
}

}  // namespace
}  // namespace kvpack::primitives_test
