package dev.headrace.client.support;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.util.Base64;

/**
 * A certificate that signs itself, for 127.0.0.1 and a day, made with this Java's keytool.
 *
 * @param certificate PEM file of the certificate, which is also what to trust
 * @param key PEM file of its key
 */
public record Certificates(Path certificate, Path key) {
    private static final char[] PASSWORD = "changeit".toCharArray();

    public static Certificates make(Path folder, String name) throws Exception {
        Path store = folder.resolve(name + ".p12");
        Process keytool = new ProcessBuilder(
                        Path.of(System.getProperty("java.home"), "bin", "keytool").toString(),
                        "-genkeypair", "-alias", name, "-keyalg", "EC", "-groupname", "secp256r1",
                        "-dname", "CN=" + name, "-ext", "san=ip:127.0.0.1", "-ext", "bc=ca:true", "-validity", "1",
                        "-storetype", "PKCS12", "-keystore", store.toString(), "-storepass", new String(PASSWORD))
                .redirectErrorStream(true)
                .start();
        String printed = new String(keytool.getInputStream().readAllBytes());
        if (keytool.waitFor() != 0) {
            throw new IOException(printed);
        }
        KeyStore entries = open(store);
        Path certificate = folder.resolve(name + ".pem");
        Path key = folder.resolve(name + ".key");
        write(certificate, "CERTIFICATE", entries.getCertificate(name).getEncoded());
        write(key, "PRIVATE KEY", entries.getKey(name, PASSWORD).getEncoded());
        return new Certificates(certificate, key);
    }

    private static KeyStore open(Path file) throws IOException, GeneralSecurityException {
        KeyStore entries = KeyStore.getInstance("PKCS12");
        try (InputStream in = Files.newInputStream(file)) {
            entries.load(in, PASSWORD);
        }
        return entries;
    }

    private static void write(Path file, String kind, byte[] der) throws IOException {
        String text = Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(der);
        Files.writeString(file, "-----BEGIN " + kind + "-----\n" + text + "\n-----END " + kind + "-----\n");
    }
}
