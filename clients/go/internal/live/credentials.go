package live

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Credentials are files for a service that asks who calls, and for its clients.
type Credentials struct {
	// CA is the authority of all certificates, Cert and CertKey are the client's.
	CA, Cert, CertKey string
	// ServerCert and ServerKey are the server's.
	ServerCert, ServerKey string
	// KeysFile has the one key, which APIKey shows.
	KeysFile, APIKey string
}

// NewCredentials makes an authority, certificates for 127.0.0.1 and for a client, and a file with one API key.
func NewCredentials(t testing.TB) *Credentials {
	t.Helper()
	folder := t.TempDir()
	authority := newAuthority(t)
	random := make([]byte, 32)
	_, _ = rand.Read(random)
	secret := base64.RawURLEncoding.EncodeToString(random)
	c := &Credentials{
		CA: filepath.Join(folder, "ca.pem"), Cert: filepath.Join(folder, "client.pem"), CertKey: filepath.Join(folder, "client.key"),
		ServerCert: filepath.Join(folder, "server.pem"), ServerKey: filepath.Join(folder, "server.key"),
		KeysFile: filepath.Join(folder, "keys.toml"), APIKey: "hr_0123abcd_" + secret,
	}
	write(t, c.CA, "CERTIFICATE", authority.certificate.Raw)
	authority.sign(t, "headrace", c.ServerCert, c.ServerKey)
	authority.sign(t, "tests", c.Cert, c.CertKey)
	keys := fmt.Sprintf("[[keys]]\nid = \"0123abcd\"\ntenant = \"tests\"\nsha256 = \"%x\"\n", sha256.Sum256([]byte(secret)))
	if err := os.WriteFile(c.KeysFile, []byte(keys), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// Flags are the service's.
func (c *Credentials) Flags() []string {
	return []string{
		"--tls-cert-file", c.ServerCert, "--tls-key-file", c.ServerKey, "--tls-client-ca-file", c.CA, "--keys-file", c.KeysFile,
	}
}

type authority struct {
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
	serial      int64
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{key: newKey(t)}
	template := a.template("Headrace tests")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	a.certificate = a.create(t, template, template, a.key)
	return a
}

func (a *authority) template(name string) *x509.Certificate {
	a.serial++
	return &x509.Certificate{
		SerialNumber: big.NewInt(a.serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
	}
}

func (a *authority) create(t testing.TB, template, parent *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

// sign writes a certificate and its key into files.
func (a *authority) sign(t testing.TB, name, certificateFile, keyFile string) {
	t.Helper()
	template := a.template(name)
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	key := newKey(t)
	write(t, certificateFile, "CERTIFICATE", a.create(t, template, a.certificate, key).Raw)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, keyFile, "PRIVATE KEY", raw)
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func write(t testing.TB, path, kind string, raw []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}), 0o600); err != nil {
		t.Fatal(err)
	}
}
