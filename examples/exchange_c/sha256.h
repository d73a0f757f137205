/* SHA-256 (FIPS 180-4) of a message of which not everything is there at once. */

#ifndef SHA256_H_
#define SHA256_H_

#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct Sha256 {
  uint32_t state[8];
  unsigned char block[64];
  uint64_t bytes;
} Sha256;

static uint32_t Turn(uint32_t word, int bits) { return word >> bits | word << (32 - bits); }

static void Sha256Begin(Sha256 *sha) {
  static const uint32_t kStart[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memcpy(sha->state, kStart, sizeof kStart);
  sha->bytes = 0;
}

static void Sha256Block(Sha256 *sha) {
  static const uint32_t kRounds[64] = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
      0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
      0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
      0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
      0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
      0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
      0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
      0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
      0xc67178f2};
  uint32_t w[64], s[8];
  int i;
  for (i = 0; i < 16; ++i) {
    const unsigned char *b = sha->block + 4 * i;
    w[i] = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
  }
  for (; i < 64; ++i) {
    w[i] = w[i - 16] + (Turn(w[i - 15], 7) ^ Turn(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
           (Turn(w[i - 2], 17) ^ Turn(w[i - 2], 19) ^ w[i - 2] >> 10);
  }
  memcpy(s, sha->state, sizeof s);
  for (i = 0; i < 64; ++i) {
    const uint32_t first = s[7] + (Turn(s[4], 6) ^ Turn(s[4], 11) ^ Turn(s[4], 25)) +
                           ((s[4] & s[5]) ^ (~s[4] & s[6])) + kRounds[i] + w[i];
    const uint32_t second = (Turn(s[0], 2) ^ Turn(s[0], 13) ^ Turn(s[0], 22)) +
                            ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    memmove(s + 1, s, 7 * sizeof *s);
    s[4] += first;
    s[0] = first + second;
  }
  for (i = 0; i < 8; ++i) sha->state[i] += s[i];
}

static void Sha256Add(Sha256 *sha, const void *data, size_t size) {
  const unsigned char *bytes = data;
  for (; size > 0; --size) {
    sha->block[sha->bytes++ % 64] = *bytes++;
    if (sha->bytes % 64 == 0) Sha256Block(sha);
  }
}

/* `hex` gets 64 digits and a NUL. */
static void Sha256End(Sha256 *sha, char hex[65]) {
  const uint64_t bits = sha->bytes * 8;
  unsigned char length[8];
  int i;
  Sha256Add(sha, "\x80", 1);
  while (sha->bytes % 64 != 56) Sha256Add(sha, "", 1);
  for (i = 0; i < 8; ++i) length[i] = (unsigned char)(bits >> (56 - 8 * i));
  Sha256Add(sha, length, sizeof length);
  for (i = 0; i < 8; ++i) snprintf(hex + 8 * i, 9, "%08x", (unsigned)sha->state[i]);
}

#endif /* SHA256_H_ */
